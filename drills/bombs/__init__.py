"""The bomb box: inputs that killed or choked other servers, thrown one by one."""
