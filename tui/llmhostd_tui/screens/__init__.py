"""What does a person look at?"""
