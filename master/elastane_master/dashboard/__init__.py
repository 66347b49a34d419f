"""The web dashboard at the HTTP port: HTML from templates, live by server-sent events, actions as rpcs.

    asked                      a URL's query -> what a viewer asks of a page (pure)
    timeline, drawing,         events, logged values and views -> shapes and text (pure)
      time_axis, curve_drawing,
      words
    browser                    cookies, and protection against forged requests (pure)
    facts                      gathers the contents of a job's page in bounded memory
    job_list, sparklines       rows of the list of jobs, and their lines of a logged value
    comparison                 two jobs side by side
    actions                    a form's fields -> an rpc's request; its response -> text (pure)
    local_calls                in-process rpcs, through the same gate as calls from outside
    pages                      contents -> HTML
    log_tail                   the end of a rank's output -> text (pure)
    run_facts, run_actions,    the same for the pages of runs
      run_pages, run_routes
    live                       server-sent events
    answers                    forms, and answers to them
    routes                     request handlers

Imported only by a master that serves HTTP.
"""
