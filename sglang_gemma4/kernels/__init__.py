"""One Triton kernel per file, beside the torch reference it must equal. Nothing here knows of SGLang."""
