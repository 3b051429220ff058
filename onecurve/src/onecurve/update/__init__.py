"""A newer template for a project that was baked: ``make update``. Nothing here needs a package."""
