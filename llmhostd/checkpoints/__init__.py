"""What is in a checkpoint, and where does each module of it lie?"""
