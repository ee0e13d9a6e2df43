"""What flows, tasks and the core have agreed on, each thing once. Needs nothing but the standard library."""
