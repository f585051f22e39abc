"""Watches one peer on its host: starts it, waits for its end and writes its exit code down.

Run by the Python there, independent of any connection: `python -c KEEPER lock exit-file answer command...`. `lock` is
an open file whose lock is held by this process and the peer: once it is free, the peer has ended.
"""

import os
import subprocess
import sys


def main(lock: int, exit_file: str, answer: int, command: list[str]) -> None:
    def write_pid() -> None:
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    try:
        # The peer itself writes its pid: when this process is killed, it alone holds the lock.
        peer = subprocess.Popen(command, pass_fds=(lock,), start_new_session=True, preexec_fn=write_pid)
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
