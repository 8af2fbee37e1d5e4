"""Words every other folder uses: errors, limits, identifiers, checksums. Imported by all, imports none."""
