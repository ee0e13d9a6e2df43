"""Training as a fold over steps: optimizer and schedule, resume state, the loop, the device."""
