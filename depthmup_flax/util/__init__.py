"""Small things that every room uses: errors, types, precision, power laws, jaxprs, optional packages."""
