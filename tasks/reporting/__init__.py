"""The parts of pages for people: tables, figures and notes of the report, and of a training's costs."""
