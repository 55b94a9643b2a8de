"""The second embedded engine: OpenVINO in a supervised child process."""
