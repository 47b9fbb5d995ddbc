"""The words that a reader of HTML sees."""

from html.parser import HTMLParser


class _Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.words, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.words += data.split()


def words(html):
    """All words, in order; the text of tags is none of them."""
    parser = _Text()
    parser.feed(html)
    return parser.words


def tags(html):
    """The names of all tags."""
    parser = _Text()
    parser.feed(html)
    return parser.tags


def printed(text):
    """The words of a printed text, without rules."""
    return {word for word in text.split() if set(word) != {"-"} or word == "-"}
