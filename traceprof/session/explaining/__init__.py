"""Why a step, or a window, took longer than another one."""

from traceprof.session.explaining.explain import explain
from traceprof.session.explaining.spec import NAME, SPEC, SUMMARY

__all__ = ["NAME", "SPEC", "SUMMARY", "explain"]
