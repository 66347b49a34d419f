"""The web dashboard at the HTTP port: HTML made here, live by server-sent events, actions through the gate.

    timeline, drawing, words   what is shown, out of events and views (pure)
    browser                    cookies, and which requests a browser may have been tricked into (pure)
    facts                      what a page needs of a job that is served, gathered in bounded memory
    actions                    a form's fields -> the rpc it stands for, and its result in words (pure)
    local_calls                rpcs within the process, through the gate that calls from outside pass
    pages                      facts -> HTML
    live                       server-sent events
    routes                     requests -> all of the above

Imported only by a master that serves HTTP.
"""
