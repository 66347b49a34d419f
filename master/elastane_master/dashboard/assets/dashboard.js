"use strict";
// Parts of the page are replaced as the master sends them; without this file the page is as of its loading.
(() => {
  // A browser that cannot keep the page up to date has it as without this file: forms and links load it anew.
  if (typeof EventSource === "undefined") return;
  const shown = document.getElementById("live");
  const say = (text, state) => {
    if (!shown) return;
    shown.hidden = false;
    if (shown.textContent !== text) shown.textContent = text;
    shown.dataset.state = state;
  };

  // The master writes times in UTC; a viewer reads those of their own place.
  const two = (value) => String(value).padStart(2, "0");
  const local = (at) => {
    const date = new Date(at * 1000);
    const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const minute = `${two(date.getHours())}:${two(date.getMinutes())}`;
    return { day, minute, second: `${minute}:${two(date.getSeconds())}`, year: date.getFullYear() };
  };
  globalThis.elastaneClock = (at) => local(at).second;
  const localize = (root) => {
    for (const one of root.querySelectorAll("[data-at]")) {
      const { day, minute, second } = local(Number(one.dataset.at));
      one.textContent = one.textContent
        .replace(/^\d\d-\d\d \d\d:\d\d$/, `${day} ${minute}`)
        .replace(/^\d\d:\d\d:\d\d/, second)
        .replace(/^\d\d:\d\d$/, minute);
    }
    for (const one of root.querySelectorAll("time[datetime]")) {
      const { day, second, year } = local(Date.parse(one.dateTime) / 1000);
      one.textContent = one.textContent.length > 8 ? `${year}-${day} ${second}` : second;
    }
    for (const one of root.querySelectorAll(".js")) one.hidden = false;
  };

  const replace = (name, html) => {
    const part = document.querySelector(`[data-part="${name}"]`);
    if (!part) return;
    // What had the focus is another element afterwards: found again by its id.
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    // So is what somebody is typing.
    const typed = [...part.querySelectorAll("input[id]")].filter((one) => one.value !== one.defaultValue);
    // What somebody has unfolded stays unfolded.
    const unfolded = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const picked = [...part.querySelectorAll("input[type=checkbox]:checked")].map((one) => one.id);
    part.innerHTML = html;
    for (const id of picked) {
      const box = document.getElementById(id);
      if (box) box.checked = true;
    }
    localize(part);
    for (const id of unfolded) {
      const folded = document.getElementById(id);
      if (folded) folded.open = true;
    }
    for (const old of typed) {
      const input = document.getElementById(old.id);
      if (input) input.value = old.value;
    }
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  let source = null;
  let later = 0;
  let over = false;
  const stop = () => {
    clearTimeout(later);
    source?.close();
    source = null;
  };
  const follow = () => {
    stop();
    if (over || !document.body.dataset.live) return;
    if (document.hidden) {
      // A browser has six connections to a master: tabs that nobody sees would leave none for the next page.
      say("not live: in the background", "away");
      return;
    }
    const asked = (source = new EventSource(document.body.dataset.live));
    asked.addEventListener("parts", (event) => {
      for (const [name, html] of Object.entries(JSON.parse(event.data))) replace(name, html);
      document.dispatchEvent(new CustomEvent("replaced"));
      say("live", "live");
    });
    asked.addEventListener("refused", (event) => {
      over = true;
      stop();
      say(`not live: ${JSON.parse(event.data).text}`, "over");
    });
    asked.onerror = () => {
      if (asked.readyState === EventSource.CLOSED) {
        // The browser asks again by itself after a broken connection, but not after an answer it did not like.
        say("not live: asking again", "away");
        later = setTimeout(follow, 3000);
      } else {
        say("not live: connecting", "away");
      }
    };
  };
  // Another part of the page is asked for: the address has it, and the updates come for it.
  const base = (document.body.dataset.live ?? "").split("?")[0];
  const ask = (query) => {
    history.replaceState(null, "", query || location.pathname);
    document.body.dataset.live = base + query;
    const asked = new URLSearchParams(query);
    for (const field of document.querySelectorAll("form.ask [name]")) {
      if (field === document.activeElement) continue;
      const value = asked.get(field.name) ?? "";
      if (field.type === "checkbox") field.checked = value === field.value;
      else field.value = value;
    }
    over = false;
    follow();
  };
  const fieldsOf = (form) => {
    const query = new URLSearchParams(location.search);
    query.delete("notice");
    for (const field of form.elements) if (field.name) query.delete(field.name);
    for (const [name, value] of new FormData(form)) if (value) query.set(name, value);
    const text = query.toString(); // not query.size, which browsers have since 2023
    return text && `?${text}`;
  };
  for (const form of document.querySelectorAll("form.ask")) {
    let typing = 0;
    const now = (event) => {
      clearTimeout(typing);
      event?.preventDefault();
      ask(fieldsOf(form));
    };
    form.addEventListener("submit", now);
    form.addEventListener("change", () => now());
    form.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(now, 300);
    });
  }
  document.addEventListener("ask", (event) => ask(event.detail));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.ask");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const focused = link.id;
    ask(new URL(link.href).search);
    if (focused) link.focus();
  });
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", stop);
  // Gone back to: the browser shows the page as it was left, and nothing is followed any more.
  addEventListener("pageshow", (event) => event.persisted && follow());

  const sections = () => [...document.querySelectorAll("main h1, main h2")];
  const step = (by) => {
    const all = sections();
    const at = all.indexOf(document.activeElement);
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    next?.setAttribute("tabindex", "-1");
    next?.focus();
    next?.scrollIntoView({ block: "start" });
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "u") location.href = document.body.dataset.up;
    else return;
    event.preventDefault();
  });

  localize(document);
  document.getElementById("zone").textContent = `Times are those of ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;

  const themes = document.querySelectorAll(".theme button");
  const showTheme = () => {
    const chosen = document.cookie.match(/(?:^|; )elastane_theme=(\w+)/)?.[1] ?? "auto";
    for (const one of themes) one.setAttribute("aria-pressed", one.value === chosen);
  };
  for (const one of themes) {
    one.addEventListener("click", (event) => {
      event.preventDefault();
      fetch(one.form.action, { method: "POST", body: new URLSearchParams({ theme: one.value }), redirect: "manual" }).then(
        () => {
          const sheet = document.getElementById("theme");
          sheet.href = `${sheet.href.split("?")[0]}?${Date.now()}`;
          showTheme();
        },
        () => one.form.requestSubmit(one),
      );
    });
  }
  showTheme();
  for (const one of document.querySelectorAll(".nojs")) one.hidden = true;
  document.getElementById("notice")?.focus();
  follow();
})();
