"""What people see: figures and tables."""
