"""What is allowed: RFC 9111 as functions from values to values.

No clock (time is an argument), no I/O, no logging, no import from outside this package.
"""
