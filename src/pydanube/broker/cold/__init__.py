"""A topic in object storage: uploading segments, releasing local copies, keeping tables, and reporting on it."""
