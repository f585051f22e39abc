"""Train a MONAI bundle as it is: `task: {monai: FOLDER}`."""
