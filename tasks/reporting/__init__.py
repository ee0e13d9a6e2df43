"""The parts of pages for people: tables, figures and notes of the report, and the costs of training runs."""
