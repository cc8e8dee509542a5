"""What the tests stand on before a test is one: README.md says what each part is for and how to switch it off."""
