"""What people see of a table: figures, terminal tables, pages, the HTML report, exports."""
