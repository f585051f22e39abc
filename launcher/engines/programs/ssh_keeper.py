"""What watches one peer on its host: starts it, waits for its end and writes the exit code down.

Run by the Python there, apart from any connection: `python -c KEEPER lock exit-file answer command...`. `lock` is an
open file whose lock is held by this process and the peer, so whoever finds it free knows that the peer has ended.
"""

import os
import subprocess
import sys


def main(lock: int, exit_file: str, answer: int, command: list[str]) -> None:
    def remember() -> None:
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    try:
        # The peer itself says its number: it may be alone with the lock, when this process is killed.
        peer = subprocess.Popen(command, pass_fds=(lock,), start_new_session=True, preexec_fn=remember)
    except OSError as error:
        os.write(answer, f"{command[0]}: {error.strerror}".encode())
        return
    os.close(answer)
    code = peer.wait()
    with open(f"{exit_file}.part", "w") as file:
        file.write(f"{code}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{exit_file}.part", exit_file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
