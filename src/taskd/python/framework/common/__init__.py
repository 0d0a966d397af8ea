"""Constants and records that the roles of the reference system share."""
