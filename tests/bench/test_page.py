from __future__ import annotations

import re
from xml.etree import ElementTree

from gnnplace.bench.grid import Grid
from gnnplace.bench.page import Section, page


def test_the_page_holds_all_and_needs_nothing():
    grids = [Grid("first", ("a", "b"), [("x", "1")]), Grid("second", ("a",), [("<y>",)])]
    plots = {"seconds": '<svg xmlns="http://www.w3.org/2000/svg"></svg>'}
    sections = [Section("small", "small: 3 problems", grids, plots)]
    text = page(sections, "how to <read>", "5 rows")
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert ElementTree.fromstring(plain).find("head/title").text == "gnnplace bench"
    assert text.index("first") < text.index("<svg") < text.index("second")
    assert "how to &lt;read&gt;" in text
    assert "&lt;y&gt;" in text
    assert '<h2 id="small">' in text
    assert '<a href="#small">' in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert set(re.findall(r"https?://[^\"< ]+", text)) <= {"http://www.w3.org/2000/svg"}
