"""Small tools that know nothing of training: processes, files, logging, the directory of jobs."""
