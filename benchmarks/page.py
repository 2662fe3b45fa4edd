"""A folder of tables and figures with one HTML page, for reports."""

import base64
import html
import io
import sys
import time
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.machine import git_commit
from sb3_cir.runs.files import write_whole

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222 }
div { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right } td { white-space: nowrap }
table + table { margin-top: 1rem }
th:first-child, td:first-child { text-align: left } img { max-width: 100%; height: auto } h2 { margin-top: 2rem }
p.note { color: #666 } nav li { display: inline-block; margin-right: 1.2rem } nav ul { padding: 0 }
"""
# As many columns, beside the first, as a page has room for.
_COLUMNS = 9


def how_it_was_made() -> str:
    """:return: The date, and the commit of the code, in a sentence"""
    commit = git_commit()
    code = f"the code of commit {commit[:10]}" if commit else "code with changes that are not committed"
    return f"Made on {time.strftime('%d %B %Y')} by {code}."


class Page:
    """
    A folder of tables and figures, and one HTML page with all of them in it.

    :param folder: Where to write
    :param title: The page's heading
    :param made: How it was made and what holds throughout, below the heading
    """

    def __init__(self, folder: Path, title: str, made: str):
        self.folder = folder
        self.title = title
        self.made = made
        self.contents: list[str] = []
        self.parts: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def text(self, heading: str, note: str = "") -> None:
        """
        :param heading: Of what follows; nothing for none
        :param note: A sentence about it
        """
        if heading:
            self.contents.append(heading)
            self.parts.append(f'<h2 id="part-{len(self.contents)}">{html.escape(heading)}</h2>')
        self.parts += [f'<p class="note">{html.escape(note)}</p>'] if note else []

    def table(self, name: str, heading: str, table: pd.DataFrame, note: str = "") -> None:
        """
        :param name: The files' name
        :param heading: Above it
        :param table: The table; an empty one is left out
        :param note: A sentence about it
        """
        if table.empty:
            self._clear(name, "csv", "md")
            return
        write_whole(self.folder / f"{name}.csv", table.to_csv(index=False).encode())
        write_whole(self.folder / f"{name}.md", f"{table.to_markdown(index=False, disable_numparse=True)}\n".encode())
        self.text(heading, note)
        parts = [part.to_html(index=False, border=0) for part in _narrow(table)]
        self.parts.append(f"<div>{''.join(parts)}</div>")

    def figure(self, name: str, heading: str, figure: Figure | None, note: str = "") -> None:
        """
        :param name: The file's name
        :param heading: Above it
        :param figure: The figure; None is left out
        :param note: A sentence about it
        """
        if figure is None:
            self._clear(name, "png")
            return
        image = io.BytesIO()
        figure.savefig(image, format="png")
        (self.folder / f"{name}.png").write_bytes(image.getvalue())
        self.text(heading, note)
        data = base64.b64encode(image.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(heading or name)}" src="data:image/png;base64,{data}">')

    def _clear(self, name: str, *kinds: str) -> None:
        """Files of an earlier report in this folder would seem to belong to this one."""
        for kind in kinds:
            (self.folder / f"{name}.{kind}").unlink(missing_ok=True)

    def list(self, heading: str, sentences: list[str]) -> None:
        """
        :param heading: Above them
        :param sentences: One point each; without any, nothing is written
        """
        if sentences:
            self.text(heading)
            self.parts.append(f"<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>")

    def write(self) -> None:
        """Write ``index.html``."""
        body = "\n".join(self.parts)
        links = [f'<li><a href="#part-{number}">{html.escape(each)}</a></li>' for number, each in enumerate(self.contents, 1)]
        title = html.escape(self.title)
        write_whole(
            self.folder / "index.html",
            f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>{_STYLE}</style></head>\n"
            f'<body><h1>{title}</h1>\n<p class="note">{html.escape(self.made)}</p>\n'
            f"<nav><ul>{''.join(links)}</ul></nav>\n{body}\n</body></html>\n".encode(),
        )
        print(f"Written: {self.folder / 'index.html'}", file=sys.stderr)


def _narrow(table: pd.DataFrame) -> list[pd.DataFrame]:
    """A table as several that fit the page's width, each with the first column."""
    names = list(table)
    return [table[[names[0], *names[start : start + _COLUMNS]]] for start in range(1, len(names), _COLUMNS)]
