"""What differs from SGLang's Gemma 4 model classes and configs."""
