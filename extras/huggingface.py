"""Train a Hugging Face model: `task: {huggingface: {model: FOLDER, ...}}`."""
