"""What can a newcomer run without downloading anything?"""
