"""The program around the model: its resume, its ranks, its speed."""
