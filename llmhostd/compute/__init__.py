"""Whose token next, and will everyone meet their SLO?"""
