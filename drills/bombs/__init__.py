"""The bomb box: inputs that crashed or blocked other servers, sent one by one."""
