// The login with a token: kept for this tab only, and sent with each request.

import * as api from "./api.js";
import { byId } from "./dom.js";
import { showNotice } from "./notice.js";

const KEY = "kestrel-token";

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // Storage is not available, so the token lasts until the page is reloaded.
  }
}

function use(token) {
  api.useToken(token);
  try {
    if (token) {
      sessionStorage.setItem(KEY, token);
    } else {
      sessionStorage.removeItem(KEY);
    }
  } catch {
    // See above.
  }
}

/** Forget the token, because the server does not accept it. */
export function refused(message) {
  use(null);
  showNotice(message, { isBad: true });
}

/** Show the button that fits: to log in, to log out, or none. */
export function showLogin({ may_administer: mayAdminister, has_tokens: hasTokens }) {
  byId("login").hidden = mayAdminister || !hasTokens;
  byId("logout").hidden = !api.hasToken();
}

/** Make the buttons work. `refreshNow` refreshes the page after a change. */
export function bindLogin({ refreshNow }) {
  use(stored());
  const dialog = byId("login-dialog");
  byId("login").addEventListener("click", () => {
    byId("login-token").value = "";
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    const token = byId("login-token").value.trim();
    byId("login-token").value = "";
    if (dialog.returnValue !== "do" || !token) return;
    if (/^[!-~]+$/.test(token)) {
      use(token);
      refreshNow();
    } else {
      refused("The token is not valid: it has other characters than a header can carry.");
    }
  });
  byId("logout").addEventListener("click", () => {
    use(null);
    refreshNow();
  });
}
