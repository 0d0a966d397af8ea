"""TaskD keeps foundation-model training running.

Nothing is imported here: this file is read in every training process, and start-up time is recovery time.
"""

__version__ = "0.1.0"
