"""How well does any OpenAI-compatible server keep its promises under load?"""
