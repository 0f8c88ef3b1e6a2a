"""Tables as people see them: figures, terminal tables, pages, the HTML report, exports."""
