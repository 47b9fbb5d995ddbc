"""Small things that several rooms use: errors, types, precision, power laws, jaxprs, optional packages."""
