"""Why a step, or a window, took longer than another one."""
