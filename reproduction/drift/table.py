def text(r):
    return ""
