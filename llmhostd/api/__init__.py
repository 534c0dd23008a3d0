"""What may a caller ask over HTTP?"""
