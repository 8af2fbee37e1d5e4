"""What commands read and print: tables, JSON, messages as text, files of a backup."""
