"""The border: everything that imports or imitates SGLang internals lives here.

Hooks are thin: they translate between SGLang's objects and our own and call into the
packages that know nothing of SGLang.
"""
