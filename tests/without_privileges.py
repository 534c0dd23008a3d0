"""Root reads what it may not: a process under test gives that up first."""

WITHOUT_PRIVILEGES = """
import ctypes, struct

def drop():
    '''Give up all capabilities, so that permissions hold for root, too.'''
    header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0), 8)
    nothing = ctypes.create_string_buffer(bytes(24), 24)
    assert ctypes.CDLL(None, use_errno=True).capset(header, nothing) == 0
"""
