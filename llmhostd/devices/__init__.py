"""What is this machine, and what is it doing?"""
