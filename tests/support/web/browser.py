"""Pages in a real browser."""

import html
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
PHONE = 360


def browse(tmp_path, page, *options):
    """Opens a page and returns what the browser prints, its errors included."""
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            *options,
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def assert_fits_a_phone(tmp_path, page):
    """Checks that a page does not scroll sideways on a phone."""
    dom = browse(
        tmp_path,
        # Browsers refuse windows as narrow as a phone; a frame can be.
        f'<iframe id="phone" width="{PHONE}" height="800" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        "<script>onload = () => { const root = document.getElementById('phone')"
        ".contentDocument.documentElement;"
        " document.title = root.clientWidth + ' ' + root.scrollWidth }</script>",
        "--dump-dom",
    )
    assert f"<title>{PHONE} {PHONE}</title>" in dom
