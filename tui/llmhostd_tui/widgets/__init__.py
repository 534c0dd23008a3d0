"""How is each kind of thing drawn?"""
