"""Memories of recurrent policies, one file each."""
