#!/usr/bin/env python3
"""Puts the page of `fovea serve` together: one HTML file that needs nothing from anywhere else, compressed.

    make_page.py FOLDER OUT [--html FILE]

FOLDER has index.html, page.css and page.js. Markdown (markdown-it) and PDF text (pdf.js) are Debian's packages libjs-markdown-it and
libjs-pdf. OUT is gzip, the same bytes from the same input. --html also writes the page as it is, to look at.
"""
import argparse
import base64
import gzip
import hashlib
import pathlib
import sys

LIBRARIES = {
    "markdown": ("/usr/share/javascript/markdown-it/markdown-it.js", "libjs-markdown-it"),
    "pdf": ("/usr/share/javascript/pdf/build/pdf.js", "libjs-pdf"),
    "pdf-worker": ("/usr/share/javascript/pdf/build/pdf.worker.js", "libjs-pdf"),
}


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--html", type=pathlib.Path)
    options = arguments.parse_args()

    parts = {"style": (options.folder / "page.css").read_text(), "script": (options.folder / "page.js").read_text()}
    for name, (path, package) in LIBRARIES.items():
        try:
            code = pathlib.Path(path).read_text()
        except OSError as error:
            sys.exit(f"{path}: {error.strerror}; install {package} (tools/deps.sh)")
        # The end of a script element may not stand in it; in a string or a comment of JavaScript the backslash changes nothing.
        lines = [line for line in code.splitlines() if not line.startswith("//# sourceMappingURL=")]
        parts[name] = "\n".join(lines).replace("</script", "<\\/script").replace("<!--", "<\\!--")

    # Only these scripts run, and nothing is fetched from anywhere but this server.
    parts["policy"] = "; ".join([
        "default-src 'none'", "connect-src 'self'", f"script-src {digest(parts['markdown'])} {digest(parts['script'])} blob:",
        "worker-src blob:", "style-src 'unsafe-inline'", "img-src data:", "font-src data:", "form-action 'none'", "base-uri 'none'"])
    page = (options.folder / "index.html").read_text()
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    if options.html:
        options.html.write_text(page)
    options.out.write_bytes(gzip.compress(page.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
