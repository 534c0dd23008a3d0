"""What must survive a restart? One SQLite file."""
