"""The documentation site: `./run docs` builds it from docs/ and from the package's docstrings.

Here lives the way from the repository's files to the pages of the site. The texts live in docs/.
No other module of the repository imports this package, except its tests.
"""
