"""`SupervisedEngine`: an engine that dies is made anew, and every open request goes on in it.

What it has to do stands in supervisor_interface.py.
"""

# lab12 task 5: this file is yours to write. Its interface stands in labs/lab12/README.md.
