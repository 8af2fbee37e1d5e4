"""Topics in object storage: uploading segments, deleting local copies, updating tables, and reporting on all of it."""
